"""Pods under stage1 images, by the interface that rkt has with them: the side of stage0."""
