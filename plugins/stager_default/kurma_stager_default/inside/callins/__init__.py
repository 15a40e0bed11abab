"""The stager's call-ins: programs that Kurma runs in a pod to read its status, run commands or change it."""
