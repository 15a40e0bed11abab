"""An app's processes: the root, the devices, the privileges and the sockets that they begin with."""
