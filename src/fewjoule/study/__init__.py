"""The built-in studies, one TOML file each."""
