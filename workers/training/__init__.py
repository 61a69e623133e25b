"""The arithmetic of one worker in torch; never imports Ray."""
