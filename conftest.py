"""Loads the plugin in a checkout that is not installed;
where it is, pytest sees that both mean the same module.
"""

from __future__ import annotations

pytest_plugins = ["kdaverify.plugin", "pytester"]
