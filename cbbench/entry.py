"""What the console script calls. It imports nothing before it is ready for Ctrl-C."""


def main() -> None:
    try:
        from cbbench.cli.app import main as run
    except KeyboardInterrupt:  # while Python still reads our files: there is nothing to keep
        raise SystemExit(130) from None
    run()
