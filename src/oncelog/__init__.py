"""Oncelog: exactly-once streaming you can pip install."""

import sys

__version__ = "0.1.0"

if sys.platform == "win32":
    raise ImportError("Oncelog runs on Linux and macOS: on Windows install it in WSL")
