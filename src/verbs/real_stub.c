/* Stands for the real libibverbs when ours is linked: nothing but its private name is wanted, so
 * that the dynamic linker loads whatever `aperture run` has put under it. */
