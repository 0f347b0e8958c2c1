"""`import fewjoule` and `fewjoule --help` cost nothing that they do not use; what is late is nevertheless all there."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest
import typer

import fewjoule
from fewjoule import cli


def test_help_imports_no_jax():
    code = (
        "import sys, fewjoule.cli\n"
        "try: fewjoule.cli.app(['--help'])\n"
        "except SystemExit: pass\n"
        "assert not {'jax', 'numpy', 'altair'} & set(sys.modules), sorted(sys.modules)\n"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "federation" in shown.stdout


def test_commands_about_members_and_runs_import_no_jax(tmp_path):
    """`provision`, `add`, `renew`, `remove`, `members`, then `status` and `stop` with a server that is away."""
    pytest.importorskip("grpc", reason="needs the extra: pip install 'fewjoule[federation]'")
    (tmp_path / "f.toml").write_text('name = "test"\nagents = ["north"]\n[server]\nname = "localhost"\nport = 9\n')
    (tmp_path / "federation.json").write_text('{"federation": "test", "id": "ab", "specs": ["{}"], "begun": true}')
    code = (
        "import sys, fewjoule.cli\n"
        "for line in ('provision f.toml', 'members', 'add west', 'renew west', 'remove west', "
        "'status --kit kits/operator', 'stop . --kit kits/operator'):\n"
        "    try: fewjoule.cli.app(['federation', *line.split()])\n"
        "    except SystemExit as end: assert end.code == 0, line\n"
        "    except fewjoule.InputError as error: print(line, 'says', error)\n"
        "    assert not {'jax', 'altair'} & set(sys.modules), line\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    for line in ("status --kit kits/operator", "stop . --kit kits/operator"):
        assert f"{line} says the server localhost:9 is away" in run.stdout


def test_every_public_name_is_where_the_three_lists_say():
    tree = ast.parse(Path(fewjoule.__file__).read_text("utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    for_checkers = {
        alias.asname or alias.name: f"{node.module}.{alias.name}".removeprefix("fewjoule.")
        for node in block.body
        for alias in node.names
    }
    assert for_checkers == fewjoule.HOMES
    assert set(fewjoule.__all__) == {*fewjoule.HOMES, "__version__", "DivergedWarning", "InputError"}
    for name in fewjoule.__all__:
        assert getattr(fewjoule, name) is not None
    with pytest.raises(AttributeError, match="'fewjoule' has no attribute 'simulated'"):
        fewjoule.simulated  # noqa: B018


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_a_command_says_of_itself_what_the_table_says(name):
    where, line = cli.COMMANDS[name]
    module, _, what = where.partition(".")
    command = getattr(__import__(f"fewjoule.cli.{module}", fromlist=[what]), what)
    said = command.info.help if isinstance(command, typer.Typer) else inspect.getdoc(command).split("\n\n")[0]
    assert " ".join(said.split()) == line
