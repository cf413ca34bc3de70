"""The contents of pages, one module per kind: functions of the console and the address that return a `Page`."""
