"""Where downloads and compiled programs are kept between runs: one folder, `FEWJOULE_CACHE` or the user's cache."""

import os
from pathlib import Path

import platformdirs


def cache_dir() -> Path:
    """The cache folder; it need not exist yet."""
    return Path(os.environ.get("FEWJOULE_CACHE") or platformdirs.user_cache_dir("fewjoule"))


def use_compile_cache(folder: Path | None = None) -> Path:
    """Have JAX keep compiled programs in `folder` (by default under `cache_dir()`); for the command line only."""
    import jax

    folder = cache_dir() / "jax" if folder is None else folder
    for name, value in (
        ("jax_compilation_cache_dir", str(folder)),
        ("jax_persistent_cache_min_compile_time_secs", 0.0),
        ("jax_persistent_cache_min_entry_size_bytes", 0),
    ):
        jax.config.update(name, value)  # type: ignore[no-untyped-call]
    return folder
