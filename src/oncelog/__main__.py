"""The command `oncelog`; `python -m oncelog` is the same."""

import gc


def main() -> None:
    gc.disable()  # imports leave no garbage, and looking for it takes a part of their time
    from oncelog.cli.main import main as run

    gc.freeze()
    gc.enable()
    run()


if __name__ == "__main__":
    main()
