"""Operations done by kurmad, asked for over its socket."""
