"""The spawner's program, run as ``python3 -I -S …/program.py FD``; FD is its end of the socket.

A script is compiled anew at each start, so that there is next to nothing in it. The standard library's modules
come first on the path; beside it only the directory that holds ``kurma_core``.
"""

import sys

if __name__ == "__main__":
    sys.path[0:1] = []  # this very directory
    sys.path.append(__file__.rpartition("/kurma_core/")[0])
    from kurma_core.spawner.server import serve

    serve(int(sys.argv[1]))
