"""The broker: handlers and runtimes over the pure layers, and the asyncio shell that feeds them bytes."""
