"""The command `kurma build`: images from a Dockerfile, by buildah."""
