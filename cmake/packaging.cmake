# `make install` and the .deb: program, bundled model, documents, systemd unit.
include(GNUInstallDirs)
install(TARGETS carpool RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY models/books-20m DESTINATION ${CMAKE_INSTALL_DATADIR}/carpool/models PATTERN golden EXCLUDE)
install(FILES docs/SERVING.md LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/carpool)
install(FILES packaging/carpool.service DESTINATION lib/systemd/system)

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME carpool)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_CONTACT "Carpool developers")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Inference engine and server for Mixture-of-Experts language models")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "python3, python3-jinja2")  # chat templates
set(CPACK_DEBIAN_PACKAGE_SECTION science)
include(CPack)
