"""The spawner's program, run as ``python3 -I -S …/program.py FD``; FD is its end of the socket.

Python compiles a script at each start, so this one is short. The path has the standard library first, and then
only the directory that holds ``kurma_core``.
"""

import sys

if __name__ == "__main__":
    sys.path[0:1] = []  # the directory of this script
    sys.path.append(__file__.rpartition("/kurma_core/")[0])
    from kurma_core.spawner.server import serve

    serve(int(sys.argv[1]))
