"""`oncelog lab`: what people read about transactions, replayed step by step on an embedded broker.

Every lab is a module with a function `run(stage)`. It tells what it does, shows what that left in the log, and ends in
checks that can fail: then the command ends with 1.
"""
