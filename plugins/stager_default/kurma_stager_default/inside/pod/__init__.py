"""The pod: the supervisor that runs its apps, PID 1, the cgroups, the status file, the control socket."""
