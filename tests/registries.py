"""A schema registry in a thread, for tests."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from oncelog.http_server import bind
from oncelog.registry.server import make_server
from oncelog.registry.store import Store


@contextmanager
def serving_registry(servers: str, topic: str = "_schemas") -> Iterator[str]:
    """Its address."""
    with Store({"bootstrap.servers": servers}, topic) as store, bind("127.0.0.1", 0) as listener:
        store.open()
        server = make_server(store)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.stop()
            thread.join(60)
