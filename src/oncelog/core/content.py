"""Keys, values and headers of records, for people and for scripts."""

from __future__ import annotations

import base64


def shown(name: str, data: bytes | None) -> dict[str, str | None]:
    """Content as text if it is text, else in base64 under another name, so that nothing is lost."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}
