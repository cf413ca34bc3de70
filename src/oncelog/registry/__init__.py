"""`oncelog registry`: schemas under ids, over HTTP, kept in a compacted topic."""
