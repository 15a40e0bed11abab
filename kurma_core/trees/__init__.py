"""Directory trees that strangers have filled: merged, copied, mounted, searched for users. Light to import."""
