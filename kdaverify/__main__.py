"""`python -m kdaverify` is `kdaverify`."""

from __future__ import annotations

from kdaverify.cli.app import main

if __name__ == "__main__":
    main()
