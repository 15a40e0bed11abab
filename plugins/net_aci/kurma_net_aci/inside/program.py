"""Run as ``python3 -I -S …/program.py CORE OWN …``: the directories that hold ``kurma_core`` and this package,
then the words of :meth:`kurma_net_aci.inside.job.Job.words`.

A script is compiled anew at each start, so that there is next to nothing in it.
"""

import sys

if __name__ == "__main__":
    sys.path[0:1] = []  # this very directory
    sys.path += sys.argv[1:3]
    from kurma_net_aci.inside.call import main

    main(sys.argv[3:])
