"""`python -m tiergate`."""

from tiergate.main import main

main()
