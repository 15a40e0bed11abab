"""Records of pods on disk, and what is read from them: pod.json, state.json, locks, names, listings."""
