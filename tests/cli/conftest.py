"""The command line in this process."""

import sys
from collections.abc import Callable

import pytest

from fewjoule import cli, files

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def fewjoule(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run the command line in this process; gives exit code, stdout and stderr."""
    monkeypatch.setattr(files, "use_compile_cache", lambda: None)

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["fewjoule", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            sys.exit(cli.main())
        said = capsys.readouterr()
        code = caught.value.code
        return code if isinstance(code, int) else 0, said.out, said.err

    return run
