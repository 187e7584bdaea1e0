"""A split that follows the load: which workers of role `auto` take prompts for others, what their steps may take."""
