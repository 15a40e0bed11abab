"""Prepares pods: from a request to a pod.json, with images, isolators, grants, volumes and id ranges."""
