"""Networks of pods, the host's side: published ports, hosts files, names, check and repair."""
