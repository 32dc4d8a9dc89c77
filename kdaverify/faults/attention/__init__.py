"""Real bugs of attention kernels, each as a patch of one conforming kernel."""
