"""Operations that kurmad does, requested over its socket."""
