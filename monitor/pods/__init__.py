"""Where pods come from: manifests and the kubepods tree."""
