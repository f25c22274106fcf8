"""``python -m octavo`` is the ``octavo`` command."""

from octavo.frontends.cli.entry import main

if __name__ == "__main__":
    main()
