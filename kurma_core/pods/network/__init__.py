"""What pods have on the host by way of networks: published ports, hosts files, names, checks and repair."""
