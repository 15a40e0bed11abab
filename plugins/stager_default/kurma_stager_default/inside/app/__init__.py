"""Sets up an app's processes: root, devices, privileges and sockets."""
