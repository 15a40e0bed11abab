"""Entry point, run as ``python3 -I -S …/program.py CORE OWN …``: the directories that hold ``kurma_core`` and this
package, then the words of :meth:`kurma_net_aci.inside.job.Job.words`.

Python compiles the main script at each start, so it is kept short.
"""

import sys

if __name__ == "__main__":
    sys.path[0:1] = []  # the directory of this file
    sys.path += sys.argv[1:3]
    from kurma_net_aci.inside.run_script import main

    main(sys.argv[3:])
