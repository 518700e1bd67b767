"""What a package adds to Fulcrum; its `pyproject.toml` says under which names."""
