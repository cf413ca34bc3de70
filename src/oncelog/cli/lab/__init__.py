"""`oncelog lab`: how transactions work, replayed step by step on an embedded broker.

Every lab is a module with a function `run(stage)`. It prints what it does, shows the resulting log, and ends with
checks; if one fails, the exit code is 1.
"""
