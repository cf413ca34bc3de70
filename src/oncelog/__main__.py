"""`python -m oncelog` is the same as the command `oncelog`."""

from oncelog.cli.main import main

if __name__ == "__main__":
    main()
