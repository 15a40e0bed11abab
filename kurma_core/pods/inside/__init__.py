"""What people do inside running pods: enter, attach, logs, copied files, processes and their usage."""
