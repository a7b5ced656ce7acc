"""`python -m posenc_lib.lab run`: the command `posenc lab`."""

import sys

from posenc_lib.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["lab", *sys.argv[1:]]))
