"""`python -m setgrad` is the command `setgrad`, also where scripts are not on the path."""

import sys

from setgrad.cli import main

if __name__ == "__main__":
    sys.exit(main())
