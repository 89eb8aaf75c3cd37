"""One agent's loop, the team, dispatch and scoring."""
