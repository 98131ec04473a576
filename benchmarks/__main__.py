"""``python -m benchmarks``. Worker processes load this module again, so that it must stay light."""

if __name__ == "__main__":
    from benchmarks.command import main

    main()
