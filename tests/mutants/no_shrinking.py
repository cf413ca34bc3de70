"""A pytest plugin: a fault is found by the first example that shows it; nobody reads the smallest one here."""

from __future__ import annotations

from hypothesis import Phase, settings

settings.register_profile("no-shrinking", phases=(Phase.explicit, Phase.generate), database=None)
settings.load_profile("no-shrinking")
