"""Runs pods under stage1 images, by rkt's interface between stage0 and stage1."""
