"""Operations done in this process, on a state directory."""
