"""What is on disk of each pod, and what is told of it: pod.json, state.json, locks, names, listings."""
